#!/bin/sh
# as_user.sh COMMAND...: as an ordinary user. If root calls, as the user `nodes`, who exists for this command alone, with a
# shell and a home for `ssh`, and for whom the interpreter is readable.
set -e
[ "$(id -u)" = 0 ] || exec "$@"
python=$(readlink -f "$1")
HOME=$(mktemp -d /tmp/nodes.XXXXXX)
trap 'rm -rf "$HOME"' EXIT
export HOME USER=nodes LOGNAME=nodes
chown 61616 "$HOME"
{ cat /etc/passwd; echo "nodes:x:61616:65534::$HOME:/bin/sh"; } > "$HOME/passwd"
unshare --mount --propagation private -- sh -c '
  interpreter=$1; shift
  mount --bind "$HOME/passwd" /etc/passwd
  case $interpreter in /root/*)
    place=${interpreter%/bin/*}
    mkdir -p /mnt/interpreter; mount --bind "$place" /mnt/interpreter
    mount -t tmpfs -o mode=755 tmpfs /root
    mkdir -p "$place"; mount --bind /mnt/interpreter "$place"; chmod -R a+rX /root 2>/dev/null || true;;
  esac
  exec setpriv --reuid=nodes --regid=nogroup --clear-groups -- "$@"' sh "$python" "$@"
