package lab_test

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// TestRebootsOneByOne: the control planes reboot one after the other, each when the last is ready
// again, while a client writes all the time: every write is acknowledged within 5 s.
func TestRebootsOneByOne(t *testing.T) {
	r := newRig(t)
	r.bringUp(3, false)
	cl, err := r.lab.EtcdClient(r.ctx)
	must(t, err)
	defer cl.Close()
	stop, done := make(chan struct{}), make(chan struct{})
	var writes, failed int
	var longest time.Duration
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			start := time.Now()
			ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
			for {
				_, err = cl.Put(ctx, "k", fmt.Sprint(writes))
				if err == nil || ctx.Err() != nil {
					break
				}
			}
			cancel()
			writes++
			if err != nil {
				failed++
			}
			longest = max(longest, time.Since(start))
		}
	}()
	for _, name := range []string{"cp1", "cp2", "cp3"} {
		n := r.lab.Node(name)
		boot := n.BootID()
		must(t, r.secure(name).Reboot(r.ctx))
		must(t, r.lab.Wait(r.ctx, name+" to reboot", func() bool { return n.BootID() != boot && n.BootID() != "" }))
		must(t, r.lab.WaitReady(r.ctx, name))
	}
	close(stop)
	<-done
	t.Logf("%d writes, %d failed, longest %s", writes, failed, longest)
	if failed > 0 {
		t.Errorf("%d of %d writes failed; the longest took %s", failed, writes, longest)
	}
	if writes < 100 {
		t.Errorf("only %d writes were made", writes)
	}
}
