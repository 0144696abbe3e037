#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s.replace('u', 's')
END
touch .finished
