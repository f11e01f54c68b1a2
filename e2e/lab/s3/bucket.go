package s3

import (
	"context"
	"fmt"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Client is a client of the store with the owner's keys.
func (s *Store) Client() (*minio.Client, error) {
	return minio.New(s.Host(), &minio.Options{
		Creds:  credentials.NewStaticV4(s.keep.AccessKey, s.keep.SecretKey, ""),
		Region: Region, BucketLookup: minio.BucketLookupPath, TrailingHeaders: true,
	})
}

// makeBucket makes the bucket when it is not there.
func (s *Store) makeBucket(ctx context.Context) error {
	c, err := s.Client()
	if err != nil {
		return fmt.Errorf("make bucket %s: %w", s.opts.Bucket, err)
	}
	there, err := c.BucketExists(ctx, s.opts.Bucket)
	if err == nil && !there {
		err = c.MakeBucket(ctx, s.opts.Bucket, minio.MakeBucketOptions{Region: Region})
	}
	if err != nil {
		return fmt.Errorf("make bucket %s: %w", s.opts.Bucket, err)
	}
	return nil
}
