#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s[-4:]
END
touch .finished
