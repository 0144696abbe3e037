#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s.replace('u', 'b')
END
touch .finished
