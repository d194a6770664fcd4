"""Checks that the manifests of deploy/kubernetes are consistent with each other and with the program."""

import ipaddress
import pathlib
import re
import sys

import jsonschema
import yaml

manifests = list(yaml.safe_load_all(pathlib.Path(sys.argv[1]).read_text()))
config = pathlib.Path("cmd/petstore/config.go").read_text()
delivery = pathlib.Path("internal/delivery/delivery.go").read_text()
guide = pathlib.Path("docs/deploying.md").read_text()
mistakes = []


def check(right, mistake):
    if not right:
        mistakes.append(mistake)


def the(kind, name=None):
    """Returns the only manifest of this kind, or of this kind and name."""
    found = [manifest for manifest in manifests if manifest["kind"] == kind and name in (None, manifest["metadata"]["name"])]
    if len(found) != 1:
        sys.exit(f"{len(found)} manifests of the kind {kind} {name or ''}, expected one")
    return found[0]


def seconds(duration):
    return float(re.fullmatch(r"([0-9.]+)s", duration)[1])


def mebibytes(size):
    return float(re.fullmatch(r"([0-9.]+)Mi(B)?", size)[1])


def selects(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


deployment, job, settings = the("Deployment", "petstore"), the("Job"), the("ConfigMap")
workers = the("Deployment", "petstore-worker")
api, migrate, worker = (one["spec"]["template"] for one in (deployment, job, workers))
pods = {"api": api, "migrate": migrate, "worker": worker}
selectors = {
    "the Deployment": ("api", deployment["spec"]["selector"]["matchLabels"]),
    "the Service": ("api", the("Service")["spec"]["selector"]),
    "the PodDisruptionBudget": ("api", the("PodDisruptionBudget", "petstore")["spec"]["selector"]["matchLabels"]),
    "the Deployment of workers": ("worker", workers["spec"]["selector"]["matchLabels"]),
    "the PodDisruptionBudget of workers": ("worker", the("PodDisruptionBudget", "petstore-worker")["spec"]["selector"]["matchLabels"]),
    "the NetworkPolicy of workers": ("worker", the("NetworkPolicy", "petstore-worker")["spec"]["podSelector"]["matchLabels"]),
}
for what, (component, selector) in selectors.items():
    for name, template in pods.items():
        selected = selects(selector, template["metadata"]["labels"])
        check(selected == (name == component), f"{what} {'selects' if selected else 'does not select'} the pod {name}")

# Networks that no webhook may reach: private ones, the nodes, and the metadata services of clouds.
internal = ["10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fe80::/10"]
for networkpolicy in ("petstore", "petstore-worker"):
    for rule in the("NetworkPolicy", networkpolicy)["spec"]["egress"]:
        check(rule.get("to") and rule.get("ports"), f"the NetworkPolicy {networkpolicy} lets out more than a destination and a port: {rule}")
        for peer in rule.get("to", []):
            labels = peer.get("podSelector", {}).get("matchLabels", {})
            check("app.kubernetes.io/name" not in labels, f"the NetworkPolicy {networkpolicy} lets out to pods of Petstore only: {labels}")
            block = peer.get("ipBlock", {"cidr": "0.0.0.0/32"})
            network = ipaddress.ip_network(block["cidr"])
            check(network.prefixlen > 0 or networkpolicy == "petstore-worker", "the NetworkPolicy lets the API out to any address")
            if network.prefixlen > 0:
                continue
            check([port["port"] for port in rule["ports"]] == [443, 8443], "the NetworkPolicy lets workers out to other ports than those of webhooks")
            excepted = [ipaddress.ip_network(one) for one in block.get("except", [])]
            for one in (one for one in map(ipaddress.ip_network, internal) if one.version == network.version):
                check(any(one.subnet_of(other) for other in excepted), f"the NetworkPolicy lets workers out to {one}")
policy = the("NetworkPolicy", "petstore")["spec"]["podSelector"]["matchLabels"]
for name, template in pods.items():
    check(selects(policy, template["metadata"]["labels"]), f"the NetworkPolicy does not select the pod {name}")
    pod, (container,) = template["spec"], template["spec"]["containers"]
    check(pod["serviceAccountName"] == the("ServiceAccount")["metadata"]["name"], f"{name}: another ServiceAccount")
    check(not pod["automountServiceAccountToken"], f"{name}: a token of the Kubernetes API")
    check(pod["securityContext"]["runAsNonRoot"], f"{name}: may be root")
    check(container["securityContext"]["readOnlyRootFilesystem"], f"{name}: may write to its root")
    check("value" not in container["env"][0], f"{name}: DATABASE_URL is not from a Secret")

secrets = {
    name: {variable["name"]: variable["valueFrom"]["secretKeyRef"] for variable in template["spec"]["containers"][0]["env"] if "valueFrom" in variable}
    for name, template in pods.items()
}
check(secrets["api"]["DATABASE_URL"] != secrets["migrate"]["DATABASE_URL"], "the API and the Job have the same role")
check(secrets["api"] == secrets["worker"], "the API and the workers have different secrets")
check("PETSTORE_SECRET_KEY" in secrets["api"], "the secrets of webhooks are not sealed")
check("PETSTORE_SERVING_ROLE" in [variable["name"] for variable in migrate["spec"]["containers"][0]["env"]], "the Job does not grant privileges to the serving role")

# The API server rejects unknown fields.
def strict(schema):
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        for part in schema.values():
            strict(part)
    elif isinstance(schema, list):
        for part in schema:
            strict(part)


for kind in ("PodMonitor", "PrometheusRule"):
    definition = yaml.safe_load((pathlib.Path(sys.argv[2]) / f"monitoring.coreos.com_{kind.lower()}s.yaml").read_text())
    (schema,) = (one["schema"]["openAPIV3Schema"] for one in definition["spec"]["versions"] if the(kind)["apiVersion"].endswith("/" + one["name"]))
    schema["properties"]["metadata"] = {}
    strict(schema)
    for error in jsonschema.Draft7Validator(schema).iter_errors(the(kind)):
        mistakes.append(f"{kind}: {error.json_path}: {error.message}")
alerts = pathlib.Path("deploy/observability/alerts.yml").read_text()
check(the("PrometheusRule")["spec"] == yaml.safe_load(alerts), "the PrometheusRule differs from alerts.yml: run make generate")
monitor = the("PodMonitor")["spec"]
((key, values),) = [(one["key"], one["values"]) for one in monitor["selector"]["matchExpressions"]]
for name, template in pods.items():
    ports = [port["name"] for port in template["spec"]["containers"][0].get("ports", [])]
    check((template["metadata"]["labels"][key] in values) == ("admin" in ports), f"the PodMonitor does not fit the pod {name}")
    job_label = template["metadata"]["labels"][monitor["jobLabel"]]
    check(f'job="{job_label}"' in alerts, f"the alerts do not use the job {job_label}")
check([one["port"] for one in monitor["podMetricsEndpoints"]] == ["admin"], "the PodMonitor uses another port")

target = the("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
check(target["name"] == deployment["metadata"]["name"], "the HorizontalPodAutoscaler scales something else")
check("replicas" not in deployment["spec"], "the Deployment and the HorizontalPodAutoscaler both set replicas")

(container,) = api["spec"]["containers"]
values = settings["data"]
(delivering,) = worker["spec"]["containers"]
for one in (container, delivering):
    check(one["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}], f"the container {one['name']} has other settings")
check(values["PETSTORE_WORKER"] == "false", "the API delivers webhooks too, but may not reach them")
for name in [*values, *secrets["api"]]:
    check(name == "GOMEMLIMIT" or f'env:"{name}"' in config, f"{name} is not a variable of config.go")
stop = container["lifecycle"]["preStop"]["sleep"]["seconds"] + seconds(values["PETSTORE_SHUTDOWN_GRACE"])
check(stop < api["spec"]["terminationGracePeriodSeconds"], "the pod is killed before its shutdown ends")
check(seconds(values["PETSTORE_SHUTDOWN_GRACE"]) < worker["spec"]["terminationGracePeriodSeconds"], "a worker is killed before its shutdown ends")


def pods_in_rollout(one, replicas, life):
    """Returns the largest number of pods. Kubernetes does not count pods that terminate, but they end before the next pod is available."""
    check(one["spec"].get("minReadySeconds", 0) >= life, f"minReadySeconds of {one['metadata']['name']} is less than the {life:.0f} s in which a pod ends")
    rolling = one["spec"]["strategy"]["rollingUpdate"]
    return replicas + 2 * rolling["maxSurge"] + rolling["maxUnavailable"]


serving = pods_in_rollout(deployment, the("HorizontalPodAutoscaler")["spec"]["maxReplicas"], stop)
working = pods_in_rollout(workers, workers["spec"]["replicas"], seconds(values["PETSTORE_SHUTDOWN_GRACE"]))
of_api, of_worker = int(values["PETSTORE_DB_MAX_CONNS"]) + 1, int(re.search(r"const Connections = (\d+)", delivery)[1])
needed = f"{serving} × {of_api} + {working} × {of_worker} + 4 = {serving * of_api + working * of_worker + 4}"
check(needed in guide, f"a rollout needs {needed} connections, but docs/deploying.md has another number")

own = {variable["name"]: variable.get("value") for variable in delivering["env"]}
for limit, one in ((values["GOMEMLIMIT"], container), (own["GOMEMLIMIT"], delivering)):
    check(mebibytes(limit) + 125 <= mebibytes(one["resources"]["limits"]["memory"]), f"GOMEMLIMIT leaves less than 125 MiB for the sockets of the container {one['name']}")
startup = container["startupProbe"]
wait = seconds(re.search(r'env:"PETSTORE_STARTUP_WAIT" envDefault:"(\w+)"', config)[1])
check(startup["periodSeconds"] * startup["failureThreshold"] > wait, "the startup probe kills the pod while it waits for the database")
check(workers["spec"]["minReadySeconds"] > wait, "a worker that does not reach the database replaces one that does")

if mistakes:
    sys.exit("\n".join(mistakes))
print("The manifests are consistent with each other and with the program.")
