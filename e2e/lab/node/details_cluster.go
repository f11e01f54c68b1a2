package node

import (
	"encoding/base64"
	"net"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/kubeaccess"
	"github.com/siderolabs/talos/pkg/machinery/resources/kubespan"
)

var clusterDetails = []detail{
	{[]string{cluster.ConfigType, cluster.InfoType, kubespan.ConfigType, kubeaccess.ConfigType}, (*boot).detailCluster},
	{[]string{etcd.ConfigType, etcd.PKIStatusType}, (*boot).detailEtcd},
}

func (b *boot) detailCluster(l *detailList) {
	if !b.complete() {
		return
	}
	cfg := b.config()
	l.add("cluster.InfoController", with(cluster.NewInfo(), cluster.InfoSpec{ClusterID: cfg.Cluster().ID(), ClusterName: cfg.Cluster().Name()}))
	spec := cluster.ConfigSpec{DiscoveryEnabled: discovers(cfg)}
	if spec.DiscoveryEnabled {
		spec.RegistryServiceEnabled = true
		spec.ServiceClusterID = cfg.Cluster().ID()
		spec.ServiceEndpoint = net.JoinHostPort("discovery.talos.dev", "443")
		// The cluster's secret is the key; a type that readers may read shows it.
		spec.ServiceEncryptionKey, _ = base64.StdEncoding.DecodeString(cfg.Cluster().Secret()) //nolint:errcheck // empty then
	}
	l.add("cluster.ConfigController", with(cluster.NewConfig(configres.NamespaceName, cluster.ConfigID), spec))
	l.add("kubespan.ConfigController", with(kubespan.NewConfig(configres.NamespaceName, kubespan.ConfigID), kubespan.ConfigSpec{}))
	l.add("kubeaccess.ConfigController", with(kubeaccess.NewConfig(configres.NamespaceName, kubeaccess.ConfigID), kubeaccess.ConfigSpec{}))
}

func (b *boot) detailEtcd(l *detailList) {
	if !b.machineType().IsControlPlane() {
		return
	}
	l.add("etcd.ConfigController", with(etcd.NewConfig(etcd.NamespaceName, etcd.ConfigID), etcd.ConfigSpec{
		Image: constants.EtcdImage + ":" + b.release.etcd, ExtraArgs: map[string]etcd.ArgValues{},
	}))
	if b.getEtcd() != nil {
		l.add("secrets.EtcdController", with(etcd.NewPKIStatus(etcd.NamespaceName, etcd.PKIID), etcd.PKIStatusSpec{Ready: true, Version: "1"}))
	}
}
