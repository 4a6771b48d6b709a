#!/bin/sh
# as_user.sh COMMAND...: as an ordinary user; if root calls, as `nobody`, for whom the interpreter is readable.
set -e
[ "$(id -u)" = 0 ] || exec "$@"
python=$(readlink -f "$1")
export HOME=$(mktemp -d /tmp/nodes.XXXXXX) USER=nobody LOGNAME=nobody
chown nobody "$HOME"
exec unshare --mount --propagation private -- sh -c '
  interpreter=$1; shift
  case $interpreter in /root/*)
    place=${interpreter%/bin/*}
    mkdir -p /mnt/interpreter; mount --bind "$place" /mnt/interpreter
    mount -t tmpfs -o mode=755 tmpfs /root
    mkdir -p "$place"; mount --bind /mnt/interpreter "$place"; chmod -R a+rX /root 2>/dev/null || true;;
  esac
  exec setpriv --reuid=nobody --regid=nogroup --clear-groups -- "$@"' sh "$python" "$@"
