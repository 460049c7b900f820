"""Programs that try to reach the host by sockets or learn about it."""

from tests.sandbox.attacks.attack import Attack

NETWORK = {
    "connect to the host": Attack(
        """\
attempt(lambda: socket.create_connection(('127.0.0.1', target['port']), 1)); held()
""",
        escapes_unprotected=True,
    ),
    "open sockets of every family": Attack(
        """\
for family in range(46):
    for kind in (1, 2, 3, 5):
        attempt(lambda: socket.socket(family, kind))
held()
""",
        escapes_unprotected=True,
    ),
    "look up a name": Attack(
        """\
attempt(socket.getaddrinfo, 'example.org', 80); held()
""",
    ),
    "connect to a socket file": Attack(
        """\
def connect():
    with socket.socket(socket.AF_UNIX) as s: s.connect(target['unix'])
attempt(connect); held()
""",
        escapes_unprotected=True,
    ),
    "use a socket pair to reach an address": Attack(
        """\
a, b = socket.socketpair()
attempt(a.connect, target['unix'])
attempt(b.sendto, b'x', target['unix']); held()
""",
    ),
    "read the environment of the host": Attack(
        """\
escaped() if target['variable'] in os.environ else held()
""",
        escapes_unprotected=True,
    ),
    "learn the name of the host": Attack(
        """\
held() if os.uname().nodename == 'sandbox' else escaped()
""",
        escapes_unprotected=True,
    ),
}
