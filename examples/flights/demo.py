"""Every flight that left New York City in 2013: through a broker, a Spark job and back, checked.

::

    ./build.sh demo
    ./build.sh demo --rows 20000
    ./build.sh demo --name-server 10.0.0.5:9876      # a cluster that is there, RocketMQ's too

Exit status: 0 when every total is the one that pandas finds in the same rows and a second run
of the job adds nothing; 1 otherwise; 2 for wrong arguments or no Java; 130 when interrupted,
which leaves nothing behind, neither a process nor a file.
"""

import sys

from interruption import Interruption


def main() -> int:
    """Run the demo and return its exit status."""
    interruption = Interruption()
    try:
        import command  # pandas and more of its size: seconds in which Ctrl-C has to do its work

        return command.main(interruption)
    finally:
        interruption.over()


if __name__ == "__main__":
    sys.exit(main())
