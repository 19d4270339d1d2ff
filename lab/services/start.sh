#!/bin/bash
docker-registry serve /etc/instinct-lab/registry.yml &
python3 /opt/hub --root /srv/hub --port 8080 &
wait -n
