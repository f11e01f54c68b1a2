package fleet

import (
	"strconv"

	"ichor.maesh.dev/ichor/schemas/v1alpha1"
)

func (d *docDecoder) checkCluster(s v1alpha1.TalosClusterSpec) {
	const versionHint = "write the full version, v1.13.5 for example"
	d.want("spec.talosVersion", s.TalosVersion, isVersion, "is no full version", versionHint)
	d.want("spec.kubernetesVersion", s.KubernetesVersion, isVersion, "is no full version", versionHint)
	d.want("spec.contract", s.Contract, isContract, "is no version contract", "write the minor version with a v, v1.13 for example")
	d.want("spec.endpoint.address", s.Endpoint.Address, isHost, "is no IP address or host name", "write the address alone, without scheme and port")
	d.checkNetwork(s.Network)
	for i, a := range s.Discovery.Addresses {
		d.want("spec.discovery.addresses["+strconv.Itoa(i)+"]", a, isIP, "is no IP address", "")
	}
	d.cidrs("spec.discovery.cidrs", s.Discovery.CIDRs)
	d.checkInstall("spec.install", s.Install)
	d.checkRollout(s.Rollout)
	d.duration("spec.reachability.interval", s.Reachability.Interval)
	d.duration("spec.reachability.grace", s.Reachability.Grace)
}

func (d *docDecoder) checkNetwork(s v1alpha1.NetworkSpec) {
	d.cidrs("spec.network.podSubnets", s.PodSubnets)
	d.cidrs("spec.network.serviceSubnets", s.ServiceSubnets)
	d.want("spec.network.dnsDomain", s.DNSDomain, isDomain, "is no DNS domain", "lower-case labels with dots between, cluster.local for example")
}

func (d *docDecoder) cidrs(path string, list []string) {
	for i, c := range list {
		at := path + "[" + strconv.Itoa(i) + "]"
		if c == "" {
			d.failPath(at, "the item is empty", "")
		}
		d.want(at, c, isCIDR, "is no CIDR range", "write address/length, 10.244.0.0/16 for example")
	}
}

func (d *docDecoder) checkRollout(s v1alpha1.RolloutSpec) {
	d.want("spec.rollout.workerMaxUnavailable", string(s.WorkerMaxUnavailable), func(v string) bool {
		return v1alpha1.IntOrPercent(v).Valid()
	}, "is no number and no percentage", "a whole number from 1, or 1% to 100%")
	d.duration("spec.rollout.settle", s.Settle)
	d.duration("spec.rollout.drain.timeout", s.Drain.Timeout)
	for i, w := range s.Windows {
		path := "spec.rollout.windows[" + strconv.Itoa(i) + "]"
		d.cron(path+".start", w.Start, path+".timeZone", w.TimeZone)
		d.duration(path+".duration", w.Duration)
	}
	if s.Reboot == "window" && len(s.Windows) == 0 {
		d.failPath("spec.rollout.reboot", "there is no window in which a reboot could begin", "give rollout.windows, or reboot: auto or manual")
	}
}

// duration wants a positive Go duration.
func (d *docDecoder) duration(path string, v v1alpha1.Duration) {
	d.want(path, string(v), func(s string) bool { return v1alpha1.Duration(s).Valid() }, "is no duration", "a number above 0 with its unit: 30s, 2m, 1h30m")
}

// cron wants a cron expression, and a time zone in at most one of the two places.
func (d *docDecoder) cron(path, schedule, zonePath, zone string) {
	if zone != "" && !isZone(zone) {
		d.failPath(zonePath, quoted(zone)+" is no time zone", "an IANA name, Europe/Paris for example")
	}
	if schedule == "" {
		return
	}
	ownZone, err := parseCron(schedule)
	if err != nil {
		d.failPath(path, quoted(schedule)+" is no schedule: "+err.Error(), `five fields: minute, hour, day of month, month, day of week, "15 3 * * *" for example`)
		return
	}
	if ownZone && zone != "" {
		d.failPath(zonePath, "the time zone is given twice, in the schedule too", "keep one of the two")
	}
}

func (d *docDecoder) checkBackup(s v1alpha1.TalosEtcdBackupSpec) {
	d.cron("spec.schedule", s.Schedule, "spec.timeZone", s.TimeZone)
	d.cron("spec.drill.schedule", s.Drill.Schedule, "spec.drill.schedule", "")
	d.want("spec.s3.bucket", s.S3.Bucket, isBucket, "is no bucket name", "the name alone, without slashes")
	for i, r := range s.Encryption.AgeRecipients {
		path := "spec.encryption.ageRecipients[" + strconv.Itoa(i) + "]"
		if !isAgeRecipient(r) {
			// A private key pasted here must not be shown.
			d.failPath(path, "the value is no age recipient", "a public key that begins with age1")
		}
	}
	for _, n := range []struct {
		name string
		n    int
	}{
		{"last", s.Retention.Last},
		{"hourly", s.Retention.Hourly},
		{"daily", s.Retention.Daily},
		{"weekly", s.Retention.Weekly},
		{"monthly", s.Retention.Monthly},
	} {
		if n.n < 0 {
			d.failPath("spec.retention."+n.name, strconv.Itoa(n.n)+" is below 0", "")
		}
	}
}
