"""Tool for a psnode cluster on EC2: started, set up, used and removed from the user's machine.

Of psnode the tool imports modules of psnode.config only.

    python -m psnode_ec2 launch | status | get_hosts | setup | run | ssh | put | get | logs | stop | extend | list | cost
    | shutdown | export

The resources of a cluster are those that carry its tags. Every command reads the tags, so that another launch resumes an
interrupted one, and shutdown removes the resources of both. Files in state_dir serve single commands: the host keys, the ended
nodes for `cost`, and a job that is kept alive.
"""
