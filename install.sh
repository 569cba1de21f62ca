#!/bin/sh
# Install Paddock from this checkout: check Python, create an environment, install, and offer a service.
# A second run installs the version that is checked out now, beside the old one.
set -eu

usage() {
    cat <<'END'
Usage: ./install.sh [OPTIONS]

  --prefix DIR     where versions are installed           [~/.local/share/paddock]
  --bin DIR        where the command `paddock` is linked  [~/.local/bin]
  --extras NAMES   such as otel,run or all                [none]
  --service        install a systemd service of this user, without a question
  --no-service     do not ask for it
  --name NAME      the name of the service                [paddock]
  --config FILE    the configuration of the service

PYTHON names the Python to use: PYTHON=python3.12 ./install.sh
END
}

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

prefix=${PREFIX:-$HOME/.local/share/paddock}
bin=$HOME/.local/bin
extras=
service=ask
name=paddock
config=
while [ $# -gt 0 ]; do
    case $1 in
    --prefix | --bin | --extras | --name | --config)
        [ $# -ge 2 ] || fail "$1 needs a value"
        case $1 in
        --prefix) prefix=$2 ;;
        --bin) bin=$2 ;;
        --extras) extras=$2 ;;
        --name) name=$2 ;;
        --config) config=$2 ;;
        esac
        shift 2
        ;;
    --service) service=yes; shift ;;
    --no-service) service=no; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown option $1" ;;
    esac
done

# Links name these folders.
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
case $bin in /*) ;; *) bin=$PWD/$bin ;; esac
root=$(cd "$(dirname "$0")" && pwd)
[ -f "$root/tools/install.py" ] || fail "run it in a clone of the repository: $root has no tools/install.py"
[ -z "$config" ] || [ -f "$config" ] || fail "there is no $config"

# Python 3.11 or newer, with the module venv, which Debian has in a package of its own.
python=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "Paddock needs Python 3.11 or newer, and ${PYTHON:-python3} is not. Name another: PYTHON=python3.12 ./install.sh"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot create environments: install its venv module (Debian, Ubuntu: apt-get install python3-venv)"

"$python" "$root/tools/install.py" "$prefix" install "$extras"
paddock=$prefix/current/bin/paddock

mkdir -p "$bin"
if [ -L "$bin/paddock" ] || [ ! -e "$bin/paddock" ]; then
    ln -sf "$paddock" "$bin/paddock"
else
    echo "$bin/paddock exists and is not a link: it is left as it is"
fi
# `source venv/bin/activate` in the checkout activates the version in use.
if [ -L "$root/venv" ] || [ ! -e "$root/venv" ]; then
    ln -sfn "$prefix/current" "$root/venv"
fi

unit=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/$name.service
if [ "$service" = ask ] && [ -e "$unit" ]; then
    service=no
    echo "The service $name uses the new version after: systemctl --user restart $name"
elif [ "$service" = ask ]; then
    service=no
    if [ -t 0 ] && [ -t 1 ] && command -v systemctl >/dev/null; then
        printf 'Install a systemd service of this user, %s, that starts at login? [y/N] ' "$name"
        read -r answer || answer=
        case $answer in [yY]*) service=yes ;; esac
    fi
fi
if [ "$service" = yes ]; then
    if [ -n "$config" ]; then
        "$paddock" service install --name "$name" --config "$config"
    else
        "$paddock" service install --name "$name"
    fi
fi

case :$PATH: in
*":$bin:"*) shown=paddock ;;
*) shown=$bin/paddock ;;
esac
cat <<END
Installed. Next:
  $shown pull demo && $shown serve      a small model on http://127.0.0.1:8080
  $shown serve --models-dir ~/models    your own models
  $shown doctor                         what could be better on this machine
END
