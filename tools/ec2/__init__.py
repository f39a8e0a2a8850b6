"""A cluster for psnode on EC2: started, set up, used and removed from one's own machine.

Of psnode it imports psnode.config.declaration alone.

    python -m psnode_ec2 launch | status | get_hosts | setup | run | ssh | put | get | logs | cost | shutdown | export

The resources of a cluster are those that carry its tags, and nothing else is remembered: every command reads the tags, so a
launch that was cut off is resumed by another one, and removed by shutdown.
"""
