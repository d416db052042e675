#!/bin/sh
# An authority of your own and a certificate for the broker, with openssl:
#
#     ./certificates.sh FOLDER HOST [HOST ...]      the names and addresses under which clients reach the broker
#
# FOLDER/ca.crt goes to every client, ca.key into a safe place, broker.crt and broker.key to the broker.
# An authority that is in FOLDER already is used again: then only the broker's certificate is new (valid for two years).
set -eu

if [ $# -lt 2 ]; then
    echo "usage: $0 FOLDER HOST [HOST ...]" >&2
    exit 2
fi
folder=$1
shift
mkdir -p "$folder"
cd "$folder"
umask 077

names=
for host in "$@"; do
    case $host in
        *[!0-9.]*) kind=DNS ;;
        *) kind=IP ;;
    esac
    case $host in *:*) kind=IP ;; esac
    names=${names:+$names,}$kind:$host
done

key='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
if [ ! -f ca.key ]; then
    # shellcheck disable=SC2086
    openssl req -x509 $key -keyout ca.key -out ca.crt -days 3650 -subj '/CN=pkm authority' \
        -addext 'keyUsage=critical,keyCertSign,cRLSign' 2>/dev/null
fi
# shellcheck disable=SC2086
openssl req -new $key -keyout broker.key -out broker.csr -subj "/CN=$1" 2>/dev/null
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n' "$names" >broker.ext
openssl x509 -req -in broker.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days "${DAYS:-730}" -extfile broker.ext \
    -out broker.crt 2>/dev/null
rm broker.csr broker.ext
chmod 644 ca.crt broker.crt
echo "$folder: broker.crt for $names, until $(openssl x509 -in broker.crt -noout -enddate | cut -d= -f2)"
