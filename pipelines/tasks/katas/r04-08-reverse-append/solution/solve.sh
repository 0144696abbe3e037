#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s[::-1] + 'r'
END
touch .finished
