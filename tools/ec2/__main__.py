"""`python -m psnode_ec2`."""

from psnode_ec2.cli import main

if __name__ == "__main__":
    main()
