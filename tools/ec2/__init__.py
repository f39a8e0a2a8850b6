"""Tool for a psnode cluster on EC2. From the user's machine, the cluster is started, set up, used and removed.

The tool imports only psnode.config from psnode.

    python -m psnode_ec2 launch | status | get_hosts | setup | run | ssh | put | get | logs | stop | extend | list | cost
    | shutdown | export

Tags on every resource name its cluster, and every command that acts on a cluster reads these tags. So a new launch resumes an
interrupted one, and shutdown removes the resources of both launches. A few files in state_dir hold other information: the host
keys, the ended nodes (for `cost`), and the record of a job that is kept alive.
"""
