"""Tables and pictures of partitions, of schedules, and of records of pipelined trials."""
