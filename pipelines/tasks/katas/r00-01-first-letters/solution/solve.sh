#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s[:3]
END
touch .finished
