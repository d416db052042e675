#!/bin/bash
# Installs, upgrades, rolls back and removes the controller on a Debian-like computer with systemd.
set -euo pipefail
umask 022

usage() {
    cat <<'END'
install.sh [install] [--wheels FOLDER] [--accept-differences]
                                         install this release, or upgrade to it; with a folder made by `make wheels`
                                         no network is needed. Before an upgrade both releases replay the newest
                                         recordings; where they differ, the old one stays unless differences are accepted
install.sh rollback                      back to the release before
install.sh uninstall [--purge]           remove everything; with --purge site files and recordings, too

Where things are: /opt/pkm/VERSION (own Python environment), /opt/pkm/current, /etc/pkm (site files), /var/lib/pkm
(recordings), services pkm-control@SITE and pkm-gateway@SITE for each /etc/pkm/sites/SITE.toml.
Exit codes: 0 done, 1 a step failed, 2 cannot be done like this.
END
}

refuse() {
    echo "install.sh: $1" >&2
    exit 2
}

trap 'echo "install.sh: line $LINENO failed: $BASH_COMMAND" >&2; exit 1' ERR

readonly opt=/opt/pkm etc=/etc/pkm data=/var/lib/pkm
readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) # a checkout, or share/ of a release
readonly placed=(
    # from below deploy/, to
    systemd/pkm-control@.service /etc/systemd/system/pkm-control@.service
    systemd/pkm-gateway@.service /etc/systemd/system/pkm-gateway@.service
    systemd/pkm.limits /etc/security/limits.d/pkm.conf
)
readonly cpus=/etc/systemd/system/pkm-control@.service.d

reload() {
    if test -d /run/systemd/system; then systemctl daemon-reload; fi
}

running() { # names of our services that run
    if test -d /run/systemd/system; then
        systemctl list-units --plain --no-legend --state=active,activating 'pkm-*@*.service' | cut -d' ' -f1
    fi
}

# A file of ours that was not changed here follows the release; one that was changed stays.
place_configuration() { # share of the release that comes, of the one that goes (may be empty)
    local new=$1 old=$2 file
    (cd "$new/config" && find machines devices sites -name '*.toml' -type f) | while read -r file; do
        if ! test -e "$etc/$file" || { test -n "$old" && cmp -s "$etc/$file" "$old/config/$file"; }; then
            install -D -m 644 "$new/config/$file" "$etc/$file"
        elif ! cmp -s "$etc/$file" "$new/config/$file"; then
            echo "kept $etc/$file: it was changed here; the release has $new/config/$file"
        fi
    done
}

switch_to() { # version
    local version=$1 old='' share=$opt/$1/share i isolated
    if test -L $opt/current; then old=$(readlink $opt/current); fi
    place_configuration "$share" "${old:+$opt/$old/share}"
    for ((i = 0; i < ${#placed[@]}; i += 2)); do
        install -D -m 644 "$share/deploy/${placed[i]}" "${placed[i + 1]}"
    done
    systemd-sysusers "$share/deploy/systemd/pkm.sysusers"
    systemd-tmpfiles --create "$share/deploy/systemd/pkm.tmpfiles"
    isolated=$(cat /sys/devices/system/cpu/isolated 2>/dev/null || true)
    if test -n "$isolated"; then
        install -d $cpus
        printf '# the CPUs that are kept free of other work, as booted\n[Service]\nCPUAffinity=%s\n' "$isolated" >$cpus/cpu.conf
    fi
    # one rename: there is no moment without a release
    ln -sfn "$version" $opt/.next && mv -T $opt/.next $opt/current
    if test -n "$old" && test "$old" != "$version"; then ln -sfn "$old" $opt/previous; fi
    ln -sfn $opt/current/bin/pkm /usr/local/bin/pkm
    reload
    if test -n "$(running)"; then
        echo "These still run the release before; restart them while the machine is at rest:"
        running | sed 's/^/  systemctl restart /'
    fi
}

# Do the release that goes and the one that comes decide the same on what was recorded here?
replay_before() { # version that comes
    local old recordings=$data/recordings
    test -L $opt/current && old=$(readlink $opt/current) && test "$old" != "$1" && test -d $recordings || return 0
    echo "Replaying the newest recordings with version $old and version $1 ..."
    (cd / && CACHE_DIRECTORY=/var/cache/pkm nice -n 19 runuser -u pkm -- \
        "$opt/$1/share/deploy/install/compare.sh" "$opt/$old/bin/pkm" "$opt/$1/bin/pkm" $recordings)
}

install_release() {
    local wheels=$1 accept=$2 version wheel='' content folder python=python3
    test "$(id -u)" = 0 || refuse "must be run as root"
    command -v systemctl >/dev/null && command -v systemd-sysusers >/dev/null || refuse "systemd is not installed here"
    $python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || refuse "Python 3.11 or later is needed: apt install python3"
    $python -c 'import ensurepip' 2>/dev/null || refuse "Python cannot make environments: apt install python3-venv"
    if test -n "$wheels"; then
        wheel=$(find "$wheels" -maxdepth 1 -name 'pkm_controller-*.whl') || refuse "$wheels: no such folder"
        test -n "$wheel" || refuse "$wheels: found no wheel of pkm-controller: is it made by 'make wheels'?"
        test "$(wc -l <<<"$wheel")" = 1 || refuse "$wheels: found more than one wheel of pkm-controller"
        version=$(basename "$wheel" | cut -d- -f2)
        content=$(sha256sum <"$wheel")
    else
        test -f "$here/pyproject.toml" || refuse "$here is no checkout: name a folder with --wheels"
        version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/pyproject.toml")
        content="from $here"
    fi
    folder=$opt/$version
    if test -f "$folder/.complete"; then
        test "$(cat "$folder/.complete")" = "$content" ||
            refuse "version $version is installed already with other content: give the new one another version"
        echo "Version $version is installed already."
    else
        echo "Installing version $version into $folder ..."
        rm -rf "$folder" # what an interrupted installation left
        $python -m venv "$folder"
        if test -n "$wheels"; then
            "$folder/bin/pip" install --quiet --no-index --find-links "$wheels" "pkm-controller==$version"
        else
            "$folder/bin/pip" install --quiet --constraint "$here/requirements.lock" "$here"
        fi
        install -d "$folder/share"
        cp -r --no-preserve=ownership "$here/config" "$here/deploy" "$folder/share/"
        echo "$content" >"$folder/.complete"
    fi
    if ! replay_before "$version"; then
        test -n "$accept" || refuse "version $version decides otherwise than the one in use, which stays; \
--accept-differences installs it all the same"
        echo "The differences are accepted."
    fi
    switch_to "$version"
    if ! test -e "$folder/.compiled"; then
        echo "Compiling the kernels, once for each release ..."
        (cd / && CACHE_DIRECTORY=/var/cache/pkm runuser -u pkm -- "$folder/bin/pkm" check "$folder/share/config/sites/hardware.toml" >/dev/null)
        touch "$folder/.compiled"
    fi
    cat <<END
Version $version is in place. Next:
  copy $etc/sites/hardware.toml to $etc/sites/SITE.toml and fill it in
  runuser -u pkm -- pkm doctor $etc/sites/SITE.toml
  systemctl enable --now pkm-gateway@SITE pkm-control@SITE
END
}

rollback() {
    test "$(id -u)" = 0 || refuse "must be run as root"
    test -L $opt/previous || refuse "there is no release before this one"
    local version
    version=$(readlink $opt/previous)
    test -f "$opt/$version/.complete" || refuse "the release before, $version, is not complete any more"
    switch_to "$version"
    echo "Back at version $version."
}

uninstall() {
    local purge=$1 answer unit i
    test "$(id -u)" = 0 || refuse "must be run as root"
    if test -z "$purge" && test -t 0 && { test -e $etc || test -e $data; }; then
        read -r -p "Remove the site files in $etc and the recordings in $data, too? [no] " answer
        if test "$answer" = yes; then purge=yes; fi
    fi
    if test -d /run/systemd/system; then
        running | while read -r unit; do
            echo "Stopping $unit ..."
            systemctl stop "$unit"
        done
        find /etc/systemd/system -name 'pkm-*@*.service' -type l -delete # what `systemctl enable` made
    fi
    for ((i = 0; i < ${#placed[@]}; i += 2)); do rm -f "${placed[i + 1]}"; done
    rm -rf $cpus $opt /usr/local/bin/pkm /var/cache/pkm /run/pkm
    reload
    if test -n "$purge"; then
        rm -rf $etc $data
        if getent passwd pkm >/dev/null; then userdel pkm; fi
        if getent group pkm >/dev/null; then groupdel pkm; fi
        echo "Removed, with site files and recordings."
    else
        echo "Removed. Site files in $etc, recordings in $data and their user pkm stay; --purge removes them, too."
    fi
}

main() {
    local what=install wheels='' purge='' accept=''
    case ${1:-} in
    install | rollback | uninstall) what=$1 && shift ;;
    esac
    while test $# -gt 0; do
        case $1 in
        --wheels)
            test "$what" = install && test $# -ge 2 || refuse "--wheels FOLDER belongs to install"
            wheels=$2 && shift
            ;;
        --accept-differences)
            test "$what" = install || refuse "--accept-differences belongs to install"
            accept=yes
            ;;
        --purge)
            test "$what" = uninstall || refuse "--purge belongs to uninstall"
            purge=yes
            ;;
        -h | --help) usage && exit 0 ;;
        *) refuse "unknown argument $1; --help tells what there is" ;;
        esac
        shift
    done
    case $what in
    install) install_release "$wheels" "$accept" ;;
    rollback) rollback ;;
    uninstall) uninstall "$purge" ;;
    esac
}

main "$@"
