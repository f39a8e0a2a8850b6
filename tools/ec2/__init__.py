"""A cluster for psnode on EC2: started, set up, used and removed from one's own machine.

Of psnode it imports psnode.config.declaration and psnode.config.plain_json alone.

    python -m psnode_ec2 launch | status | get_hosts | setup | run | ssh | put | get | logs | stop | extend | list | cost
    | shutdown | export

The resources of a cluster are those that carry its tags: every command reads the tags, so a launch that was cut off is resumed
by another one, and removed by shutdown. All else that is remembered, in state_dir, serves one command
each: the host keys, the nodes that have ended, for `cost`, and a job that is kept alive.
"""
