package main

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/guestwire/guestwire/examples/metrics"
	"github.com/guestwire/guestwire/phase1"
)

func printMetrics(ctx context.Context, o *options) error {
	wirings, err := phase1.List(ctx, o.Dir)
	if err != nil {
		return err
	}
	if o.NetNS != nil || o.Own {
		report, err := phase1.Status(ctx, o.Config)
		if report == nil {
			return err
		}
		wirings = slices.DeleteFunc(wirings, func(w phase1.Wiring) bool {
			return w.Namespace != report.Namespace || w.NIC != report.NIC
		})
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(metrics.NICs{Context: ctx, Wirings: wirings, Config: o.Config}); err != nil {
		return err
	}
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(stdout, f); err != nil {
			return err
		}
	}
	return nil
}
