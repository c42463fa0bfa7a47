# Source this file: it starts a cluster in ./cluster and makes this machine its node "machine", whose containers are plain
# processes. Arguments are passed to `dray up`. kubectl, dray and drivers read the variables that it exports.
export KUBECONFIG=$PWD/cluster/kubeconfig NODE_NAME=machine DRAY_ROOT_DIR=$PWD/cluster/node DRAY_CDI_DIR=$PWD/cluster/node/cdi
dray up --data-dir=cluster "$@" > up.log 2>&1 &
until kubectl get --raw=/readyz > /dev/null 2>&1; do sleep 0.2; done
dray node --data-dir=cluster --cdi-spec-dirs="$DRAY_CDI_DIR" --hostname-override=$NODE_NAME \
  --runtime=process --port=0 > node.log 2>&1 &
until kubectl get node $NODE_NAME > /dev/null 2>&1; do sleep 0.2; done
kubectl wait --for=condition=Ready node/$NODE_NAME --timeout=60s
