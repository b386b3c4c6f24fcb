"""`python -m multibit` is the command `multibit`."""

from multibit.cli import main

if __name__ == "__main__":
    main()
