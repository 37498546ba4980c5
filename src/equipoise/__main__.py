"""`python -m equipoise` is the command line: where the package is on the path and no command was installed."""

from equipoise.cli import main

if __name__ == "__main__":
    main()
