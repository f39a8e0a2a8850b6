"""`python -m tools.ec2`."""

from tools.ec2.cli import main

if __name__ == "__main__":
    main()
