# psnode in a container: one of its ranks, or all of them on one machine. Build it in a checkout:
#
#   docker build -t psnode .
#   docker run --rm psnode train --local 2 --scheme qsgd --max-steps 20
#
# On several machines it needs the host's network (--network host) and an sshd or another launcher to start the ranks.
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
ENTRYPOINT ["psnode"]
CMD ["--help"]
