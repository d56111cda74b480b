"""Dashboard and alert rules ask for metrics that there are, by labels that they have."""

import json
import re

import pytest
import yaml

from earl.obs.catalogue import METRICS
from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "earl.json"
# What Prometheus adds to every series of a target: endpoints.json, and itself.
TARGET = {"job", "instance", "run", "process", "service"}
NAME = re.compile(r"\b(earl_[a-z_]+)(?:\{([^}]*)\})?")


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions():
    dashboard = json.loads(DASHBOARD.read_text())
    panels = {panel["title"]: panel for panel in dashboard["panels"] if panel["type"] != "row"}
    found = {title: target["expr"] for title, panel in panels.items() for target in panel["targets"]}
    found |= {one["name"]: one["expr"] for one in dashboard["annotations"]["list"]}
    found |= {one["name"]: one["query"]["query"] for one in dashboard["templating"]["list"][1:]}
    for title, panel in panels.items():
        for number, target in enumerate(panel["targets"]):
            found[f"{title} {number}"] = target["expr"]
    return found | {rule["alert"]: rule["expr"] for rule in rules()}


@pytest.mark.parametrize(("where", "expression"), expressions().items())
def test_metrics_exist_with_these_labels(where, expression):
    for name, selector in NAME.findall(expression):
        metric = METRICS.get(name) or METRICS.get(re.sub(r"_(bucket|sum|count)$", "", name))
        assert metric is not None, f"{where}: there is no {name}"
        assert (name == metric.name) == (metric.kind != "histogram"), f"{where}: {name} is a histogram"
        asked = set(re.findall(r"(\w+)\s*[=!]~?\s*\"", selector))
        assert asked <= {*metric.labels, *TARGET}, f"{where}: {name} has no {asked}"
        if metric.kind == "counter":
            assert re.search(rf"(rate|increase)\({name}", expression), f"{where}: {name} only grows"


def test_every_alert_says_what_to_do():
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found) >= 12
    for rule in found:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert (
            set(rule["annotations"]) == {"summary", "remedy"} and "$labels" in rule["annotations"]["summary"]
        )


def test_panels_stand_apart_and_are_told_apart():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + line)
        for panel in panels
        for column in range(panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places) and max(x for x, _ in places) < 24
