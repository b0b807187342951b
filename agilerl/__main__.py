"""`python -m agilerl`: the command line."""

from agilerl.cli import app

if __name__ == "__main__":
    app(prog_name="agilerl")
