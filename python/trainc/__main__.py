"""`python -m trainc`: the command `trainc`."""

from trainc.cli import main

main()
