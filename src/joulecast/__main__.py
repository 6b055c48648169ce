"""``joulecast``, and ``python -m joulecast``."""

import sys


def main() -> None:
    """Run the command line; to be interrupted while it loads is no failure either."""
    try:
        from joulecast.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
