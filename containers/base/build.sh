#!/bin/sh
# build.sh FILE: write the root file system of the base image, a tar of Debian packages, to FILE.
# Whatever is changed in this folder makes another image, by its digest. Needs mmdebstrap, and no container registry.
set -eu
# python3 for the project's own programs and for graders; libatomic1 and libstdc++6 for Node; the rest for models.
# /root is open, since folders of a host whose driver is root are shown below it.
exec mmdebstrap --quiet --variant=minbase --mode="$(if [ "$(id -u)" = 0 ]; then echo root; else echo unshare; fi)" \
    --include=ca-certificates,git,libatomic1,libstdc++6,procps,python3 \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='echo agent:x:1000:1000::/home/agent:/bin/sh >> "$1/etc/passwd"' \
    --customize-hook='echo agent:x:1000: >> "$1/etc/group"' \
    --customize-hook='mkdir -p "$1/home/agent" "$1/work"; chmod 755 "$1/root"' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*' \
    bookworm "$1"
