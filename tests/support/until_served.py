"""python -m tests.support.until_served WORDS: a command that serves until Ctrl+C, stopped once it shows its address."""

import signal
import subprocess
import sys
import threading

LONGEST_S = 600


def _listen() -> None:
    """A test that was started in the background hands on that Ctrl+C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """Exit status of the command; 0 where it ended as what is interrupted does, 130, after its address was shown."""
    is_served = False
    with subprocess.Popen(
        sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=_listen
    ) as process:
        timer = threading.Timer(LONGEST_S, process.kill)  # whatever happens, it ends
        timer.start()
        for line in process.stdout or ():
            print(line, end="")
            if "http://127.0.0.1:" in line:
                is_served = True
                process.send_signal(signal.SIGINT)
        timer.cancel()
        status = process.wait()
        return 0 if is_served and status == 130 else status


if __name__ == "__main__":
    sys.exit(main())
