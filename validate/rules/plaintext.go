package rules

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/secret"
	"ichor.maesh.dev/ichor/validate/secretscan"
)

func plaintextSecretRule() Rule {
	return Rule{
		ID:    "plaintext-secret",
		Doc:   "No secret lies in plain text in any text file of the repository.",
		Check: checkPlaintextSecret,
	}
}

// hintPlaintext says what to do; a secret that was pushed is known.
const hintPlaintext = "encrypt it with SOPS and age; what was pushed in plain text must be replaced, because the history keeps it"

func checkPlaintextSecret(c *Context) []fleet.Problem {
	files, found := c.secrets()
	owners := fileOwners(c.Head)
	var problems []fleet.Problem
	for i, list := range found {
		if files[i].SkipScan {
			problems = append(problems, fleet.Problem{
				Severity: fleet.Warning, Cluster: owners[files[i].Path], File: files[i].Path,
				Message: "not scanned for secrets: Ichor's configuration leaves this file out",
			})
			continue
		}
		for _, f := range list {
			problems = append(problems, fleet.Problem{
				Severity: fleet.Error, Cluster: owners[files[i].Path], File: files[i].Path, Line: f.Line, Column: f.Column,
				Path: f.Path, Message: "secret in plain text: " + f.What, Hint: hintPlaintext, Fingerprint: f.Digest,
			})
		}
	}
	return problems
}

// scanFleet scans every file that known does not have, on all cores; found is parallel to files.
func scanFleet(ctx context.Context, f *fleet.Fleet, known *ScanCache) (files []fleet.File, found [][]secretscan.Finding) {
	files, talos := scannedFiles(f)
	found = make([][]secretscan.Finding, len(files))
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				found[i] = secretscan.File(files[i].Data, talos[files[i].Path])
				known.put(files[i].Data, talos[files[i].Path], found[i])
			}
		})
	}
	known.begin()
	for i := range files {
		var ok bool
		if found[i], ok = known.get(files[i].Data, talos[files[i].Path]); ok {
			continue
		}
		if ctx != nil && ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	return files, found
}

// secretScan is the scan of one fleet.
type secretScan struct {
	files []fleet.File
	found [][]secretscan.Finding
}

// secrets scans every file of head once, those that the rule leaves out too.
func (c *Context) secrets() ([]fleet.File, [][]secretscan.Finding) {
	if c.scan == nil {
		files, found := scanFleet(c.Ctx, c.Head, c.Scans)
		c.scan = &secretScan{files, found}
	}
	return c.scan.files, c.scan.found
}

// SecretValues gives the values that lie in plain text, in files that the rule leaves out too, so that no output
// repeats them.
func SecretValues(c *Context) []secret.Bytes {
	_, found := c.secrets()
	var out []secret.Bytes
	for _, list := range found {
		for _, x := range list {
			out = append(out, x.Value)
		}
	}
	return out
}

// scannedFiles lists every text file once, those outside of the path that manifests name too. talos holds those that
// are Talos configuration or a bundle because a manifest says so.
func scannedFiles(f *fleet.Fleet) (files []fleet.File, talos map[string]bool) {
	seen := make(map[string]bool, len(f.Files))
	talos = map[string]bool{}
	files = slices.Clone(f.Files)
	for _, file := range f.Files {
		seen[file.Path] = true
	}
	add := func(file *fleet.File) {
		if file != nil && !seen[file.Path] {
			seen[file.Path] = true
			files = append(files, *file)
		}
	}
	for _, cl := range f.Clusters {
		if cl.Secrets != nil {
			talos[cl.Secrets.Path] = true
			add(cl.Secrets)
		}
		for _, b := range cl.Backups {
			add(b.Credentials)
		}
		for _, p := range cl.Patches {
			for _, e := range p.Entries {
				if e.Pos.File == p.Pos.File {
					continue
				}
				talos[e.Pos.File] = true
				add(&fleet.File{Path: e.Pos.File, Data: e.Raw})
			}
		}
	}
	return files, talos
}

// fileOwners gives the cluster of each file that holds objects of one cluster alone.
func fileOwners(f *fleet.Fleet) map[string]string {
	owners := map[string]string{}
	own := func(file, cluster string) {
		if was, ok := owners[file]; ok && was != cluster {
			cluster = ""
		}
		owners[file] = cluster
	}
	for _, cl := range f.Clusters {
		if cl.Manifest != nil {
			own(cl.Pos.File, cl.Name)
		}
		if cl.Secrets != nil {
			own(cl.Secrets.Path, cl.Name)
		}
		for _, m := range cl.Machines {
			own(m.Pos.File, cl.Name)
		}
		for _, p := range cl.Patches {
			own(p.Pos.File, cl.Name)
			for _, e := range p.Entries {
				own(e.Pos.File, cl.Name)
			}
		}
		for _, b := range cl.Backups {
			own(b.Pos.File, cl.Name)
			if b.Credentials != nil {
				own(b.Credentials.Path, cl.Name)
			}
		}
		for _, p := range cl.Policies {
			own(p.Pos.File, cl.Name)
		}
		for _, o := range cl.Operations {
			own(o.Pos.File, cl.Name)
		}
	}
	return owners
}
