#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s * 4 + 'd'
END
touch .finished
