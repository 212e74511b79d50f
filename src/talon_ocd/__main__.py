"""``python -m talon_ocd`` is the command ``talon``."""

from talon_ocd.cli.main import main

if __name__ == "__main__":
    main()
