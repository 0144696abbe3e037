{ pipeline: 'quickstart' }
