#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return [i + 2 for i in v]
END
touch .finished
