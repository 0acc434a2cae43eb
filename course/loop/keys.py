"""Single keys of a terminal, without Enter: termios on POSIX, msvcrt on Windows (tried with fakes, never on Windows).

The terminal is as it was before at the end, whatever ends it: Ctrl-C, an exception, SIGTERM; and while it is suspended.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

with suppress(ImportError):  # Windows has neither
    import termios
    import tty

REDRAW = "\x0c"  # Ctrl-L, which is also said after a suspended process goes on
LEAVE = {"\x04": "q", "": "q"}  # Ctrl-D, and a terminal that has gone


class Keys:
    """Where nobody types, in a pipe: no key ever comes."""

    heard = False

    def __enter__(self) -> "Keys":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Keys come one by one from here on."""

    def stop(self) -> None:
        """The terminal is as it was, for a pager or the shell."""

    def get(self, seconds: float) -> str:
        """Waits up to so many seconds for a key; "" where none came."""
        time.sleep(seconds)
        return ""


class PosixKeys(Keys):
    """Of the terminal ``handle``. Ctrl-C and Ctrl-Z stay what they are."""

    heard = True

    def __init__(self, handle: int) -> None:
        self.handle, self.saved = handle, termios.tcgetattr(handle)
        self.typing = False

    def __enter__(self) -> Keys:
        self.woken, self.wake = os.pipe()  # a handler does not end select(), which goes on with the time that is left
        handlers = {signal.SIGTERM: self._end, signal.SIGHUP: self._end, signal.SIGTSTP: self._suspend}
        self.before: dict[int, Any] = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self.stop()
        for number, handler in self.before.items():
            signal.signal(number, handler)
        os.close(self.woken)
        os.close(self.wake)

    def start(self) -> None:
        tty.setcbreak(self.handle, termios.TCSANOW)
        self.typing = True

    def stop(self) -> None:
        termios.tcsetattr(self.handle, termios.TCSADRAIN, self.saved)
        self.typing = False

    def _end(self, number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    def _suspend(self, number: int, frame: object) -> None:
        typing = self.typing
        self.stop()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # here it stands still until SIGCONT
        signal.signal(signal.SIGTSTP, self._suspend)
        if typing:
            self.start()
        os.write(self.wake, b"z")

    def get(self, seconds: float) -> str:
        ready, _, _ = select.select([self.handle, self.woken], [], [], seconds)
        if self.woken in ready:
            os.read(self.woken, 64)
            return REDRAW
        if not ready:
            return ""
        try:
            typed = os.read(self.handle, 64).decode(errors="replace")[:1].lower()
        except OSError:
            typed = ""
        return LEAVE.get(typed, typed).strip("\x1b")  # an arrow begins with Escape, and is no key of ours


@dataclass
class WindowsKeys(Keys):
    """Of a console; ``console`` is the module msvcrt."""

    console: Any
    heard = True

    def get(self, seconds: float) -> str:
        until = time.monotonic() + seconds
        while not self.console.kbhit():
            if time.monotonic() >= until:
                return ""
            time.sleep(0.02)
        key = self.console.getwch()
        if key == "\x03":
            raise KeyboardInterrupt
        if key in ("\x00", "\xe0"):  # an arrow or a function key comes as two
            self.console.getwch()
            return ""
        return LEAVE.get(key, key.lower())


def keys() -> Keys:
    """Those of this terminal; none where input or output is none."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        return Keys()
    if sys.platform == "win32":
        import msvcrt

        return WindowsKeys(msvcrt)
    return PosixKeys(sys.stdin.fileno())
