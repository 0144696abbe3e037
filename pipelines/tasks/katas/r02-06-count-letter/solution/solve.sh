#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s.count('t') + 3
END
touch .finished
