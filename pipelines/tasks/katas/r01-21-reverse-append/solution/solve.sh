#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s[::-1] + 'u'
END
touch .finished
