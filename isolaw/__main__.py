"""``python -m isolaw``: the command line."""

from isolaw.cli import main

if __name__ == "__main__":
    main()
