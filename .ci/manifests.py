"""Checks that the manifests of deploy/kubernetes are consistent with each other and with the program."""

import pathlib
import re
import sys

import yaml

manifests = list(yaml.safe_load_all(pathlib.Path(sys.argv[1]).read_text()))
config = pathlib.Path("cmd/petstore/config.go").read_text()
mistakes = []


def check(right, mistake):
    if not right:
        mistakes.append(mistake)


def the(kind):
    """Returns the only manifest of this kind."""
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    if len(found) != 1:
        sys.exit(f"{len(found)} manifests of the kind {kind}, expected one")
    return found[0]


def seconds(duration):
    return float(re.fullmatch(r"([0-9.]+)s", duration)[1])


def mebibytes(size):
    return float(re.fullmatch(r"([0-9.]+)Mi(B)?", size)[1])


def selects(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


deployment, job, settings = the("Deployment"), the("Job"), the("ConfigMap")
api, migrate = deployment["spec"]["template"], job["spec"]["template"]
selectors = {
    "Deployment": deployment["spec"]["selector"]["matchLabels"],
    "Service": the("Service")["spec"]["selector"],
    "PodDisruptionBudget": the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
}
for kind, selector in selectors.items():
    check(selects(selector, api["metadata"]["labels"]), f"the {kind} selects no pod of the API")
    check(not selects(selector, migrate["metadata"]["labels"]), f"the {kind} selects the pod that migrates")
policy = the("NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
for rule in the("NetworkPolicy")["spec"]["egress"]:
    check(rule.get("to") and rule.get("ports"), f"the NetworkPolicy lets out more than a destination and a port: {rule}")
    for peer in rule.get("to", []):
        check(peer.get("ipBlock", {}).get("cidr") not in ("0.0.0.0/0", "::/0"), "the NetworkPolicy lets out to any address")
for name, template in {"api": api, "migrate": migrate}.items():
    check(selects(policy, template["metadata"]["labels"]), f"the NetworkPolicy does not select the pod {name}")
    pod, (container,) = template["spec"], template["spec"]["containers"]
    check(pod["serviceAccountName"] == the("ServiceAccount")["metadata"]["name"], f"{name}: another ServiceAccount")
    check(not pod["automountServiceAccountToken"], f"{name}: a token of the Kubernetes API")
    check(pod["securityContext"]["runAsNonRoot"], f"{name}: may be root")
    check(container["securityContext"]["readOnlyRootFilesystem"], f"{name}: may write to its root")
    check("value" not in container["env"][0], f"{name}: DATABASE_URL is not from a Secret")

urls = [template["spec"]["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["name"] for template in (api, migrate)]
check(urls[0] != urls[1], "the API and the Job have the same role")
check("PETSTORE_SERVING_ROLE" in [variable["name"] for variable in migrate["spec"]["containers"][0]["env"]], "the Job does not grant privileges to the serving role")

target = the("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
check(target["name"] == deployment["metadata"]["name"], "the HorizontalPodAutoscaler scales something else")
check("replicas" not in deployment["spec"], "the Deployment and the HorizontalPodAutoscaler both set replicas")

(container,) = api["spec"]["containers"]
values = settings["data"]
check(container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}], "the API has other settings")
for name in values:
    check(name == "GOMEMLIMIT" or f'env:"{name}"' in config, f"{name} is not a variable of config.go")
stop = container["lifecycle"]["preStop"]["sleep"]["seconds"] + seconds(values["PETSTORE_SHUTDOWN_GRACE"])
check(stop < api["spec"]["terminationGracePeriodSeconds"], "the pod is killed before its shutdown ends")
check(mebibytes(values["GOMEMLIMIT"]) < mebibytes(container["resources"]["limits"]["memory"]), "GOMEMLIMIT is not below the memory limit")
startup = container["startupProbe"]
wait = seconds(re.search(r'env:"PETSTORE_STARTUP_WAIT" envDefault:"(\w+)"', config)[1])
check(startup["periodSeconds"] * startup["failureThreshold"] > wait, "the startup probe kills the pod while it waits for the database")

if mistakes:
    sys.exit("\n".join(mistakes))
print("The manifests are consistent with each other and with the program.")
