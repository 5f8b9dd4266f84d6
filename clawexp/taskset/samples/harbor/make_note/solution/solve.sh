#!/bin/bash

printf "# Note\n\nCall the plumber.\n" > note.md
