"""A process that forks one child for every test, with no protection: what the sandbox is timed by.

It reads a JSON line with program and input, runs the program in a forked child whose output it
captures through a pipe, and writes a JSON line with the output.
"""

import json
import os
import sys


def main() -> None:
    for line in sys.stdin:
        program, text = json.loads(line)
        for_input, for_output = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(for_input[0], 0)
            os.dup2(for_output[1], 1)
            os.closerange(3, 64)
            sys.stdin = open(0)  # noqa: SIM115
            sys.stdout = open(1, "w")  # noqa: SIM115
            exec(compile(program, "solution.py", "exec"), {"__name__": "__main__"})
            sys.stdout.flush()
            os._exit(0)
        os.write(for_input[1], text.encode())
        for file in (*for_input, for_output[1]):
            os.close(file)
        with open(for_output[0], "rb") as output:
            written = output.read()
        os.waitpid(pid, 0)
        print(json.dumps(written.decode()), flush=True)


if __name__ == "__main__":
    main()
