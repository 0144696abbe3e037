#!/bin/bash
LC_ALL=C sort colours.txt >sorted.txt
grep -c . colours.txt >count.txt
sed -i 's/teh/the/' notes.txt
