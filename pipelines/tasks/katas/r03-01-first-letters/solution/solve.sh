#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s[:2]
END
touch .finished
