#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s.count('t') + 6
END
touch .finished
