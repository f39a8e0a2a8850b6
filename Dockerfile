# psnode in a container: one of its ranks, or all of them on one machine. Build it in a checkout:
#
#   docker build -t psnode .
#   docker run --rm --shm-size 1g psnode train --local 2 --scheme qsgd --max-steps 20
#
# docs/containers.md has volumes, several machines and Apptainer.
FROM ubuntu:24.04
ENV PSNODE_VENV=/opt/psnode
WORKDIR /usr/src/psnode
COPY setup.cfg pyproject.toml constraints.txt README.md LICENSE ./
COPY psnode psnode
COPY tools/ec2 psnode_ec2
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN PSNODE_CONSTRAINTS=constraints.txt psnode_ec2/pre_run.sh . \
    && apt-get install -qq -y --no-install-recommends openssh-client \
    && rm -rf /var/lib/apt/lists/* /root/.cache
RUN useradd --create-home ranks
USER ranks
WORKDIR /home/ranks
ENV PATH=/opt/psnode/bin:$PATH
# the kernels of the default scheme, of topk and of atomo: compiled once, and not by every container
RUN psnode train --local 2 --max-steps 2 --no-tensorboard --train-dir /tmp/first \
    && psnode train --local 2 --max-steps 2 --no-tensorboard --scheme topk --train-dir /tmp/second \
    && psnode train --local 2 --max-steps 2 --no-tensorboard --scheme atomo --downlink qsgd --train-dir /tmp/third \
    && rm -r /tmp/first /tmp/second /tmp/third
ENTRYPOINT ["psnode"]
CMD ["--help"]
