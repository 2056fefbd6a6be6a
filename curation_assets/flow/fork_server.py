"""The first module that the fork server loads: from here on Ctrl+C ends it, without a traceback.

It is started with SIGINT blocked, so that none comes before. Once it has loaded its libraries it ignores Ctrl+C, as
multiprocessing has it: the parent ends it then.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
